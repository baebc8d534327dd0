"""Where there is no CUDA device, Triton's interpreter runs the kernels; it must be told before triton is imported."""

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
