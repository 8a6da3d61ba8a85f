"""The ClientApp: it passes messages on to `python -m digits.client` on the same host."""

from verax.federated.flower import relay_app

app = relay_app()
