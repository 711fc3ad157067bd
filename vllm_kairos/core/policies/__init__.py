"""Policies: one file each, built by name with `make_policy`."""

from vllm_kairos.core.policies.registry import POLICY_SPECS, make_policy

__all__ = ["POLICY_SPECS", "make_policy"]
