"""The modules of scripts/peers. They need only Python until the GPU is requested, because any Python may run it."""
