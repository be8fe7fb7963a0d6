"""What scripts/peers is made of. It needs nothing but Python until it asks for the GPU, since any Python may run it."""
