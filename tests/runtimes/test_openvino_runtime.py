"""Several threads may use OpenVINO for the first time at once."""

import subprocess
import sys
from pathlib import Path

import onnx

# Without time slices, a thread that waits inside OpenVINO with Python's lock in its hand is waited for in vain.
CODE = """
import sys
from pathlib import Path
from threading import Barrier, Thread
import numpy as np
from vitrail.runtimes.openvino_runtime import compile_model, read_model

sys.setswitchinterval(60)
compiled = compile_model(read_model(Path(sys.argv[1])), 1, "float32", "a graph")
ready = Barrier(8)

def infer():
    request = compiled.create_infer_request()
    ready.wait()
    request.infer([np.zeros((2, 3), dtype=np.float32)])

threads = [Thread(target=infer) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_first_calls_in_several_threads_do_not_wait_for_each_other(tmp_path: Path) -> None:
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2, 3]) for name in "xy"]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "g", ends[:1], ends[1:])
    opset = [onnx.helper.make_opsetid("", 20)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=9), tmp_path / "graph.onnx")
    subprocess.run([sys.executable, "-c", CODE, str(tmp_path / "graph.onnx")], check=True, timeout=300)
