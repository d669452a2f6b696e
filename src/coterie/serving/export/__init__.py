"""Trained models as files that others use without this library: ONNX, torch.export, safetensors with JSON."""
