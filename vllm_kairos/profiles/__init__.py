"""Profiles that come with the package: latency models of known hardware, by name."""

from vllm_kairos.profiles.shipped import load_shipped, resolve_profile, shipped_names, shipped_profile_path

__all__ = ["load_shipped", "resolve_profile", "shipped_names", "shipped_profile_path"]
