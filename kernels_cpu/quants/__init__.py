"""Quant types, a module each; `kernels_cpu.quants.table` finds them by ggml type id."""
