"""A model as a service on one machine: `vitrail serve`.

settings     what can be set; also the flags and the arguments; the models and their names
server       the front process: binds, runs, drains; connections holds what one connection may do
gate         what every request passes: its id, who may ask, how often, the headers of the answer; then telemetry is
             told what became of it; exchange is one request and its answer, or why it has none
app          the table of routes; rest has those of /v1, open_inference those of /v2; openapi describes them
dispatch     what a route is, its arguments, and how it asks a model
uploads      the pictures of a request, limited while they arrive, and checked before anything is decoded
batching     the bounded queue, and which pictures are computed together
supervisor   one worker process per model: started, watched, started again, exchanged for a newer model
worker       that process: decodes and computes with what engine makes of a model; overlays explains
decoder      a process beside the worker, for pictures that would hold it up
frames       what front and worker send each other

The front process never loads torch and never computes, so that it always answers.
"""
