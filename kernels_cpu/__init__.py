"""Arithmetic on the CPU: quant formats, compiled operations and the tape that runs them.

It imports nothing of localllm, and knows neither files nor models nor requests.
"""


class KernelError(Exception):
    """Root of what kernels_cpu raises on purpose: an unknown type, a wrong shape, a CPU that lacks a feature."""
