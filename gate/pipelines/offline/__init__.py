"""What can be told again from kept evidence, without a training and without git."""
