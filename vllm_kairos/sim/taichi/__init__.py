"""`taichi`: differentiated instances, length-aware prefill and flowing decodes (Wang et al. 2025, arXiv 2508.01989)."""
