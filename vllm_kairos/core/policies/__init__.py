"""Policies: one file each, built by name with `make_policy`."""

from vllm_kairos.core.policies.registry import POLICIES_NEEDING_TRUTH, POLICY_SPECS, check_spec, make_policy

__all__ = ["POLICIES_NEEDING_TRUTH", "POLICY_SPECS", "check_spec", "make_policy"]
