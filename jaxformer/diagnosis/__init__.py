"""What a run directory shows of the causes of a lower, or a not comparable, BLEU."""
