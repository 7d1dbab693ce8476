"""How far the memory is trusted: Δ_mem and β (`gate`), the incentive they weigh, the temperature, both propositions."""
