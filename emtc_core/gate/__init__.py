"""The temporal-consistency gate: Δ_mem and β, the incentive, the temperature, and checks of both propositions."""
