"""The tables of "Attention Is All You Need", next to the parameters, costs and scores
of jaxformer.
"""
