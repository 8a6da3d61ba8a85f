"""Privacy curves: bounds on epsilon(delta) and delta(epsilon), closed or made of other curves."""
