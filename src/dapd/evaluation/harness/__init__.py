"""lm-eval's tasks on a diffusion model: the adapter, local data, code execution, and resumable runs."""
