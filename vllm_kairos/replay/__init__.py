"""Open-loop replay of a workload against any OpenAI-compatible endpoint."""
