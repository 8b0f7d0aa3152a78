"""What computes: torch, ONNX Runtime or OpenVINO behind the same few calls, and the way from a checkpoint to each.

runtime            the protocols `Runtime` and `Backend`, and what opens a source; the table of runtimes: `registry.py`
torch_runtime, onnx_runtime, openvino_runtime: a `Backend` each; graph_runtime is what those of exports share
manifest           what travels inside an export beside its graph
graph              the computation that is exported: preprocessing, model, extra outputs
exporter           checkpoint → export, proven before it is moved into place
int8, int8_trials  the same in 8-bit integers, accepted only if the answers stay the same
auto, auto_cache   the fastest runtime for a job, measured once
contestants        what `benchmark` measures
repository         a model repository for Triton and OpenVINO Model Server
"""
