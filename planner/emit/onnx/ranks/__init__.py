"""One ONNX graph per rank, with the collectives between ranks as operators of a domain of their own."""

from planner.emit.onnx.ranks.emitter import INDEX, emit_onnx_ranks, file_of, unsupported

__all__ = ["INDEX", "emit_onnx_ranks", "file_of", "unsupported"]
