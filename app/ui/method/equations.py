"""The method: notation, Eq. 1 to 12, and short versions of Algorithms 1 to 3."""

from dataclasses import dataclass

import streamlit as st

from app.ui.widgets.result_table import write_table

_IDEA = r"""
At first, a team of agents rarely wins. EMTC stores the best return observed from each state and moves the learner's
target towards it. A gate reduces this incentive if the stored values of two successive states are not consistent over
one step. EMTC adds two parts to EMU: an embedder trained with a contrastive term (**TCSE**), and the gate on the
incentive (**TCGM**). With $\rho, \beta \in [0, 1]$ the target is a convex combination,
"""
_IDENTITY = (
    r"y = r + \gamma \big[(1 - \beta\rho)\,\max_{a'} Q_{\theta^-}(s',a') + \beta\rho\, H(s')\big],"
    r"\qquad \beta\rho \in [0, 1]"
)
_IDENTITY_NOTE = (
    "so the incentive alone cannot diverge. This is true for the unclamped incentive (`incentive.clamp = none`)."
)

NOTATION = (
    (r"$s, s', t$", "state, next state, step in the episode"),
    (r"$r, \gamma$", "team reward in the learner's unit (`train.reward_scale`), discount"),
    (r"$R_t$", r"discounted return from step $t$: $R_t = r_t + \gamma R_{t+1}$"),
    (r"$Q_{tot}, \theta, \theta^-$", "mixed action value, parameters of the online and of the target network"),
    (r"$\max_{a'} Q_{\theta^-}(s',a')$", "the bootstrap value of the TD target (double Q-learning by default)"),
    (r"$f_\phi, x, f_\psi^H, f_\psi^s$", r"encoder, embedding $x = f_\phi(s,t)$, decoders of return and state"),
    (r"$\hat x, \hat s, \delta$", "nearest stored embedding, its state, merge radius"),
    (r"$H$", "highest return stored in the node that a state retrieves"),
    (r"$\xi, N_{call}, N_\xi, \rho$", r"success flag, visits, successful visits, $\rho = N_\xi / N_{call}$"),
    (r"$\Delta_{mem}, \beta, \tau$", "consistency error of the memory over one step, gate, gate temperature"),
    (r"$\tau_{cl}$", "temperature of the contrastive term, not of the gate"),
    (r"$r_p, \tilde r_p$", "episodic incentive, gated incentive"),
)


@dataclass(frozen=True)
class Equation:
    """One numbered equation with its explanation."""

    number: int
    latex: str
    text: str


BACKGROUND = (
    Equation(
        1,
        r"H(x_t) = \max\{H(\hat x), R_t\} \quad \text{if } \lVert x_t - \hat x \rVert_2 < \delta,"
        r"\qquad \text{else a new node with } H(x_t) = R_t",
        "Episodic control stores the best return of each node. A state merges into its nearest node within δ.",
    ),
    Equation(
        2,
        r"r_p(s,a) = \gamma\, \frac{N_\xi(s')}{N_{call}(s')}\,"
        r"\Big(H(f_\phi(s')) - \max_{a'} Q_{\theta^-}(s',a')\Big)",
        "EMU's incentive: the stored return of s′ minus the network's value, times the node's share of successes.",
    ),
    Equation(
        3,
        r"L_p = \Big(r + r_p + \gamma \max_{a'} Q_{\theta^-}(s',a') - Q_{tot}(s,a;\theta)\Big)^2",
        "The incentive is added to the TD target. Terminal steps have no bootstrap value (C13, C14).",
    ),
)
EMBEDDER = (
    Equation(
        4,
        r"L_{total} = L_{dCAE}(\phi,\psi) + \lambda_{cl}\, L_{cl}(\phi)",
        "The reconstruction term predicts return and state. The contrastive term pulls augmented views together.",
    ),
    Equation(
        5,
        r"L_{dCAE} = \big(H_t - f_\psi^H(f_\phi(s_t,t),t)\big)^2"
        r" + \lambda_{rcon} \lVert s_t - f_\psi^s(f_\phi(s_t,t),t) \rVert_2^2",
        "A deterministic autoencoder conditioned on time. It reconstructs the stored return and the state.",
    ),
    Equation(
        6,
        r"L_{cl} = -\,\mathbb{E}_{(i,j)} \log \frac{\exp(\mathrm{sim}(z_i,z_j)/\tau_{cl})}"
        r"{\sum_k \exp(\mathrm{sim}(z_i,z_k)/\tau_{cl})}, \qquad z = f_\phi(s,t)",
        "InfoNCE with cosine similarity. A positive pair is two views of one state at one time step. All other "
        "states of the batch are negatives. A view masks random coordinates and adds noise.",
    ),
)
GATE = (
    Equation(
        7,
        r"\Delta_{mem}(s,a) = \big| r(s,a) + \gamma H(s') - H(s) \big|",
        "The Bellman error between two stored values. No network is involved.",
    ),
    Equation(
        8,
        r"\beta(\Delta_{mem}) = \exp\!\Big(-\frac{\Delta_{mem}^2}{2\tau^2}\Big) \in (0, 1]",
        "The gate is open if the memory is consistent, and closed if Δ_mem is several times τ.",
    ),
    Equation(9, r"\tilde r_p(s,a) = \beta(\Delta_{mem})\; r_p(s,a)", "The gated incentive."),
    Equation(
        10,
        r"L^\beta = \Big(r + \tilde r_p + \gamma \max_{a'} Q_{\theta^-}(s',a') - Q_{tot}(s,a;\theta)\Big)^2",
        "The loss that EMTC minimises.",
    ),
    Equation(
        11,
        r"\nabla_\theta L^\beta = -2\, \nabla_\theta Q_{tot}\,\Big(\Delta_{TD} +"
        r"\beta\,\gamma\,\rho(s')\,\big(H(s') - \max_{a'} Q_{\theta^-}(s',a')\big)\Big)",
        "Its gradient: the TD error of the backbone plus the gated incentive.",
    ),
    Equation(
        12,
        r"\tau(t_{env}) = \max\Big(\tau_{end},\; \tau_{start} -"
        r"\frac{\tau_{start} - \tau_{end}}{T_{decay}}\, t_{env}\Big)",
        "The temperature decreases from 1.2 to 0.6, so the gate closes more easily later in training. The paper does "
        "not give T_decay (C7).",
    ),
)

_GATE_CHOICES = r"""
**Which nodes the gate reads.** Eq. 7 needs $H(s)$ and $H(s')$ of the states of an episode.
- `gate.lookup = nearest` (default): the nearest node of each state, found by a search as in Algorithm 3. `written`: the
  node that Algorithm 2 assigned when it wrote the episode; a node added one step later may be nearer.
- `gate.timing = after_write` (default): the memory already contains the episode, as in Algorithm 3. A trajectory
  without merges is then always consistent: $H(s_t) = R_t$, so $\Delta_{mem} = 0$ and $\beta = 1$ for any return. Only a
  merge adds the return of another episode (C19). `before_write`: the memory before the episode is written.
- `gate.on_miss`: no node is within $\delta$. `block`: $\beta = 0$; `pass`: $\beta = 1$; `nearest`: use the nearest node
  at any distance.
- `gate.on_empty`: the memory or its index is empty, as in the first episode. `pass` (default): $\beta = 1$; `block`:
  $\beta = 0$.

The presets combine these choices. Live shows the effect: Δ_mem and β of new transitions next to those of the links in
memory. A node that never merged is consistent with its successor, so the mean over the links alone does not show the
effect of the gate.
"""
BEYOND = (
    (
        r"\tau = \min\Big(\max\big(Q_p(\Delta_{mem}),\; u\,\tau_{end}\big),\; u\,\tau_{start}\Big)",
        "`gate.schedule = adaptive`, not in the paper: τ is quantile p = 0.9 of Δ_mem over the last 10,000 "
        "transitions, limited to τ_end and τ_start. Before the first transition it is τ_start. The gate of an episode "
        "uses only earlier episodes.",
    ),
    (
        r"u = 1 \quad \text{or} \quad u = \mathrm{std}(R_t)",
        "`gate.tau_unit`: the unit of τ_start and τ_end is the return (`return`, the paper), or the standard deviation "
        "of the discounted returns of the last 10,000 transitions (`spread`). With `spread`, multiplying all rewards "
        "by a constant does not change the gates.",
    ),
    (
        r"\tau \ge u\,\tau_{end} > 0 \quad\Rightarrow\quad \beta \ge"
        r"\exp\!\Big(-\frac{\Delta_{mem}^2}{2\,(u\,\tau_{end})^2}\Big) \;\longrightarrow\; 1"
        r"\quad \text{as } \Delta_{mem} \to 0",
        "Proposition 2 requires β → 1 as Δ_mem → 0. The lower limit u τ_end ensures this for every schedule, although "
        "the quantile tends to 0 together with Δ_mem.",
    ),
)

_ALGORITHM_1 = r"""
**Algorithm 1: refit the embedder**, every `embed.interval` env steps.
1. Draw at most $N$ nodes $(s, H, t)$ without replacement. Use each once, in batches of $B$.
2. Make an augmented view of each batch, embed the batch and the view, and decode the embedding of the batch.
3. Make a gradient step on $L_{dCAE} + \lambda_{cl} L_{cl}$ (Eq. 4 to 6).
4. Embed every node again from its stored $(s, t)$. Update the normalisation and the search index together.
"""
_ALGORITHM_2 = r"""
**Algorithm 2: write an episode into the memory**, from its last step to its first.
1. $R \leftarrow r_t + \gamma R$ and $x \leftarrow f_\phi(s_t, t)$; find the nearest node.
2. Within $\delta$: count the visit, and the success if the episode was won. At the first success of the node, move it
   to this state and set $H \leftarrow R$; otherwise $H \leftarrow \max(H, R)$.
3. Otherwise append a node with $H = R$. A full memory first removes its least recently used node.
4. Link the node to the node of the next step.
"""
_ALGORITHM_3 = r"""
**Algorithm 3: the main loop.**
1. Collect an episode with $\varepsilon$-greedy agents; compute $\tau$ (Eq. 12).
2. Write the episode into the memory (Algorithm 2), then find the nearest nodes of its states for $H(s_t)$ and
   $H(s_{t+1})$.
3. Compute $\Delta_{mem}$ and $\beta$ (Eq. 7, 8); store the episode with its gates in the replay buffer.
4. Sample a batch, compute $r_p$ from the current memory (Eq. 2), and minimise $L^\beta$ (Eq. 10).
5. Every `embed.interval` env steps, refit the embedder (Algorithm 1).
"""


def show() -> None:
    """Draw the description of the method."""
    st.markdown(_IDEA)
    st.latex(_IDENTITY)
    st.markdown(_IDENTITY_NOTE)
    st.subheader("Notation")
    st.markdown(write_table(("Symbol", "Meaning"), NOTATION))
    for title, equations in (
        ("Background", BACKGROUND),
        ("TCSE: the embedder", EMBEDDER),
        ("TCGM: the gate", GATE),
    ):
        st.subheader(title)
        for equation in equations:
            st.latex(rf"{equation.latex} \qquad ({equation.number})")
            st.caption(equation.text)
    st.subheader("Choices of the gate")
    st.markdown(_GATE_CHOICES)
    for latex, text in BEYOND:
        st.latex(latex)
        st.caption(text)
    st.subheader("Algorithms")
    for text in (_ALGORITHM_1, _ALGORITHM_2, _ALGORITHM_3):
        with st.container(border=True):
            st.markdown(text)
