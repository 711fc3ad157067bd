"""An event-driven cluster of vLLM engines that runs the router's own policy objects."""
