"""End-to-end accelerated deep reinforcement learning in JAX."""
