"""Every error this product raises on purpose; a message names the field, the rule and the value."""


class KairosError(Exception):
    """Base of all our errors: one line that a person can act on."""


class ConfigError(KairosError):
    """A flag, environment variable or settings file is not valid."""


class RequestError(KairosError):
    """A client's request is not valid; the router answers 400, never a node's fault."""


class StateError(KairosError):
    """A node state breaks one of its own rules."""


class ProfileError(KairosError):
    """A profile cannot be read, does not fit this model, or would not be monotone."""


class WireError(KairosError):
    """A message between router and engine is malformed, unsigned, replayed or of a newer schema."""


class UnsupportedVersionError(KairosError):
    """The installed vLLM lies outside the range this release was tested with."""


class ClusterError(KairosError):
    """A local cluster could not be started or did not become healthy."""


class SimulationError(KairosError):
    """A simulation was asked for something that cannot be simulated."""


class WorkloadError(KairosError):
    """A trace cannot be read, or a workload cannot be made or changed as asked."""
