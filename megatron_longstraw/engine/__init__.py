"""What owns gradients, optimizer and their reduction, behind one small interface."""
