"""ONNX graph → ONNX graph: load, save, inspect, lint, edit."""
