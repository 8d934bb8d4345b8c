"""The file: ONNX bytes to a checked model, a graph back to a model, weights left out."""
