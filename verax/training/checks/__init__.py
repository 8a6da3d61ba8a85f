"""What is refused before and while a model trains: records that mix, models that remember, gradients that hide."""
