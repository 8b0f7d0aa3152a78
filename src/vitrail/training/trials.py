def carry_out_search(*a, **k):
    raise NotImplementedError


def settle_search(*a, **k):
    raise NotImplementedError
