"""What a response is worth: the call of a reward function, and some functions that come along."""
