"""What a request costs: the gateway with everything on beside a bare relay, in one interleaved run; and what open answers cost."""
