"""Privacy curves: bounds on epsilon(delta) and delta(epsilon), in closed form or made of other curves."""
