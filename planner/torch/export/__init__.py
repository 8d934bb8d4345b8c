"""`planner export`: an ONNX file without weights, of a PyTorch module or of a configuration of Hugging Face.

- `command`: the command line; `tensors`: inputs as they are written there
- `modules`: a module of the user's code; `configurations`: one of a config.json of transformers
- `losses`: losses by name
- `files`: the step as a file, written by `planner.torch.capture` or, with `onnx_exporter`, by torch.onnx

The modules hold no weights (`planner.torch.capture.unallocated`).  Nothing is imported here: torch may be missing.
"""
