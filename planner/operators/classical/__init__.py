"""Classical machine learning (ai.onnx.ml), and optimizers of ONNX preview training."""
