"""Array kernels: no word of reinforcement learning in here."""
