"""A model as a service on one machine: `vitrail serve`.

settings     what can be set; also the flags and the arguments
server       the front process: binds, runs, drains; connections holds what one connection may do
gate         what every request passes: its id, who may ask, how often, the headers of the answer; then access_log,
             metrics and tracing are told what became of it
app          the table of routes; simple has those of /v1, open_inference those of /v2, page the files of the page
bodies       the pictures of a request, limited while they arrive; headers judges them before anything is decoded
batching     the bounded queue, and which pictures are computed together
supervising  one worker process per model: started, watched, started again, exchanged for a newer model
worker       that process: decodes and computes with what computing makes of a model; explaining answers for explain
frames       what front and worker send each other

The front process never loads torch and never computes, so that it always answers.
"""
