"""An OpenAI-compatible router that decides, per request, where its prompt is computed."""
