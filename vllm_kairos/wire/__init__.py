"""What crosses between engine and router: node state (msgpack over ZMQ) and request parameters (JSON).

Shared by both sides; depends on msgspec alone, never on vllm.
"""
