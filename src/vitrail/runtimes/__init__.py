"""What computes: torch, ONNX Runtime or OpenVINO behind the same few calls, and the way from a checkpoint to each.

runtime            the protocol; torch_runtime, onnx_runtime, openvino_runtime implement it
opening            the table of them: which one opens a located source
manifest           what travels inside an export beside its graph
graph              the computation that is exported: preprocessing, model, extra outputs
exporting          checkpoint → ONNX, OpenVINO or torch.export, proven before it is moved into place
quantizing         the same in 8-bit integers, accepted only if the answers stay the same
"""
