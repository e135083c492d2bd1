"""ONNX graph → results: the operator table and the interpreter."""
