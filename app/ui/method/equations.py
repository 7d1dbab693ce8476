"""The method on one page: notation, Eq. 1 to 12, and Algorithms 1 to 3 in short."""

from dataclasses import dataclass

import streamlit as st

_IDEA = r"""
Agents that learn a game together rarely win at first. EMTC remembers the best return seen from each state and pulls the
learner's target towards it, but only as far as the memory agrees with itself over one step. A memory whose values
jump between two successive states is not trusted there. EMTC adds two parts to EMU: an embedder trained with a
contrastive term (**TCSE**), and the gate on the incentive (**TCGM**). With $\rho, \beta \in [0, 1]$ the target is a
convex combination,
"""
_IDENTITY = (
    r"y = r + \gamma \big[(1 - \beta\rho)\,\max_{a'} Q_{\theta^-}(s',a') + \beta\rho\, H(s')\big],"
    r"\qquad \beta\rho \in [0, 1]"
)
_IDENTITY_NOTE = (
    "so the incentive cannot blow up by itself. This holds for the unclamped incentive (`incentive.clamp = none`)."
)

NOTATION = (
    (r"$s, s', t$", "state, next state, step inside the episode"),
    (r"$r, \gamma$", "team reward in the learner's unit (`train.reward_scale`), discount"),
    (r"$R_t$", r"discounted return from step $t$: $R_t = r_t + \gamma R_{t+1}$"),
    (r"$Q_{tot}, \theta, \theta^-$", "mixed action value, parameters of the online and of the target network"),
    (r"$\max_{a'} Q_{\theta^-}(s',a')$", "the very value that the TD target bootstraps (double Q-learning by default)"),
    (r"$f_\phi, x, f_\psi^H, f_\psi^s$", r"encoder, embedding $x = f_\phi(s,t)$, decoders of return and state"),
    (r"$\hat x, \hat s, \delta$", "nearest stored embedding, its state, radius that counts as the same memory"),
    (r"$H$", "highest return stored in the memory that a state retrieves"),
    (r"$\xi, N_{call}, N_\xi, \rho$", r"success flag, visits, successful visits, $\rho = N_\xi / N_{call}$"),
    (r"$\Delta_{mem}, \beta, \tau$", "consistency error of the memory over one step, gate, gate temperature"),
    (r"$\tau_{cl}$", "temperature of the contrastive term; not the gate's"),
    (r"$r_p, \tilde r_p$", "episodic incentive, gated incentive"),
)


@dataclass(frozen=True)
class Equation:
    """One numbered equation and what it says."""

    number: int
    latex: str
    text: str


BACKGROUND = (
    Equation(
        1,
        r"H(x_t) = \max\{H(\hat x), R_t\} \quad \text{if } \lVert x_t - \hat x \rVert_2 < \delta,"
        r"\qquad \text{else a new memory with } H(x_t) = R_t",
        "Episodic control keeps the best return of each place. A state merges into its nearest memory within δ.",
    ),
    Equation(
        2,
        r"r_p(s,a) = \gamma\, \frac{N_\xi(s')}{N_{call}(s')}\,"
        r"\Big(H(f_\phi(s')) - \max_{a'} Q_{\theta^-}(s',a')\Big)",
        "EMU's incentive: how far the memory of s′ stands above the network, weighed by how often that memory won.",
    ),
    Equation(
        3,
        r"L_p = \Big(r + r_p + \gamma \max_{a'} Q_{\theta^-}(s',a') - Q_{tot}(s,a;\theta)\Big)^2",
        "The incentive enters the TD target. Terminal steps bootstrap nothing (C13, C14).",
    ),
)
EMBEDDER = (
    Equation(
        4,
        r"L_{total} = L_{dCAE}(\phi,\psi) + \lambda_{cl}\, L_{cl}(\phi)",
        "Reconstruction keeps what predicts the return; the contrastive term keeps augmented views together.",
    ),
    Equation(
        5,
        r"L_{dCAE} = \big(H_t - f_\psi^H(f_\phi(s_t,t),t)\big)^2"
        r" + \lambda_{rcon} \lVert s_t - f_\psi^s(f_\phi(s_t,t),t) \rVert_2^2",
        "A deterministic autoencoder conditioned on time: it must give back the stored return and the state.",
    ),
    Equation(
        6,
        r"L_{cl} = -\,\mathbb{E}_{(i,j)} \log \frac{\exp(\mathrm{sim}(z_i,z_j)/\tau_{cl})}"
        r"{\sum_k \exp(\mathrm{sim}(z_i,z_k)/\tau_{cl})}, \qquad z = f_\phi(s,t)",
        "InfoNCE with cosine similarity. A positive pair is two views of one state at one time; the rest of the batch "
        "is negative. A view masks coordinates at random and adds noise.",
    ),
)
GATE = (
    Equation(
        7,
        r"\Delta_{mem}(s,a) = \big| r(s,a) + \gamma H(s') - H(s) \big|",
        "One Bellman step between two memories. Stored values only; no network enters.",
    ),
    Equation(
        8,
        r"\beta(\Delta_{mem}) = \exp\!\Big(-\frac{\Delta_{mem}^2}{2\tau^2}\Big) \in (0, 1]",
        "The gate is open where the memory is consistent and closes within a few τ.",
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
        "Its gradient: the TD error of the backbone plus the gated pull of the memory.",
    ),
    Equation(
        12,
        r"\tau(t_{env}) = \max\Big(\tau_{end},\; \tau_{start} -"
        r"\frac{\tau_{start} - \tau_{end}}{T_{decay}}\, t_{env}\Big)",
        "The temperature falls from 1.2 to 0.6: lenient at first, strict later. T_decay is not given (C7).",
    ),
)

_READING = r"""
**Which memory the gate asks.** Eq. 7 needs $H(s)$ and $H(s')$ of the actual states of an episode.
- `gate.lookup = nearest` (default): Algorithm 3 searches, so each state asks the node nearest to it now. `written`
  asks the node that Algorithm 2 assigned while it walked the episode; a node added a step later may lie nearer.
- `gate.timing = after_write` (default): the memory already holds the episode, as Algorithm 3 prints. A trajectory
  that merged nowhere then agrees with itself: $H(s_t) = R_t$, so $\Delta_{mem} = 0$ and $\beta = 1$, however bad it is.
  Only a merge brings another episode's return in (C19). `before_write` asks what was known before.
- `gate.on_miss`: no node within $\delta$. `block`: $\beta = 0$; `pass`: $\beta = 1$; `nearest`: ask the nearest node at
  any distance.
- `gate.on_empty`: no node at all, in a first episode or before an index exists. `pass` (default): $\beta = 1$, since a
  memory that knows nothing has nothing to doubt; `block`: $\beta = 0$.

The presets on this page are readings made of these choices. Live shows what each does: Δ_mem and β of new transitions
beside those of the links in memory. A node that never merged is consistent with its successor, so the mean over the
links alone cannot show the gate at work.
"""
BEYOND = (
    (
        r"\tau = \min\Big(\max\big(Q_p(\Delta_{mem}),\; u\,\tau_{end}\big),\; u\,\tau_{start}\Big)",
        "`gate.schedule = adaptive`, beyond the paper: τ follows quantile p (`gate.tau_quantile`) of Δ_mem over the "
        "newest `gate.tau_window` transitions, between τ_end and τ_start. Before any was measured it is τ_start. An "
        "episode is judged by what the episodes before it left.",
    ),
    (
        r"u = 1 \quad \text{or} \quad u = \mathrm{std}(R_t)",
        "`gate.tau_unit`: τ_start and τ_end count in returns (`return`, the paper), or in standard deviations of the "
        "discounted returns of the newest transitions (`spread`): rewards c times larger then give the same gates.",
    ),
    (
        r"\tau \ge u\,\tau_{end} > 0 \quad\Rightarrow\quad \beta \ge"
        r"\exp\!\Big(-\frac{\Delta_{mem}^2}{2\,(u\,\tau_{end})^2}\Big) \;\longrightarrow\; 1"
        r"\quad \text{as } \Delta_{mem} \to 0",
        "Proposition 2 needs an open gate where the memory is consistent. The floor gives it for every schedule, "
        "although the quantile itself tends to 0 together with Δ_mem.",
    ),
)

_ALGORITHM_1 = r"""
**Algorithm 1: refit the embedder**, whenever `embed.interval` env steps have passed.
1. Draw at most $N$ memories $(s, H, t)$ without replacement; go through them once in batches of $B$.
2. Of each batch make an augmented view, embed both, decode the raw one.
3. Step on $L_{dCAE} + \lambda_{cl} L_{cl}$ (Eq. 4 to 6).
4. Embed every memory anew from its stored $(s, t)$; refresh the normalisation and the search index together.
"""
_ALGORITHM_2 = r"""
**Algorithm 2: write an episode into the memory**, from its last step to its first.
1. $R \leftarrow r_t + \gamma R$ and $x \leftarrow f_\phi(s_t, t)$; find the nearest memory.
2. Nearer than $\delta$: count the visit, and the success if the episode was won. If it is the first success here, the
   memory moves to this state and takes $R$; otherwise $H \leftarrow \max(H, R)$.
3. Else append a memory with $H = R$; a full store drops its least recently used one first.
4. Link the memory to the one that the next step used.
"""
_ALGORITHM_3 = r"""
**Algorithm 3: the main loop.**
1. Play an episode with $\varepsilon$-greedy agents; compute $\tau$ (Eq. 12).
2. Write the episode into the memory (Algorithm 2), then search the nodes nearest to its actual states for $H(s_t)$ and
   $H(s_{t+1})$.
3. Compute $\Delta_{mem}$ and $\beta$ (Eq. 7, 8); store the episode with its gates in the replay buffer.
4. Sample a batch, compute $r_p$ from the memory as it is now (Eq. 2), and minimise $L^\beta$ (Eq. 10).
5. When it is due, refit the embedder (Algorithm 1).
"""


def show() -> None:
    """Draw the whole description."""
    st.markdown(_IDEA)
    st.latex(_IDENTITY)
    st.markdown(_IDENTITY_NOTE)
    st.subheader("Notation")
    rows = "\n".join(f"| {symbol} | {meaning} |" for symbol, meaning in NOTATION)
    st.markdown(f"| Symbol | Meaning |\n| --- | --- |\n{rows}")
    for title, equations in (
        ("What it builds on", BACKGROUND),
        ("TCSE: the embedder", EMBEDDER),
        ("TCGM: the gate", GATE),
    ):
        st.subheader(title)
        for equation in equations:
            _show_equation(equation)
    st.subheader("The gate's choices")
    st.markdown(_READING)
    for latex, text in BEYOND:
        st.latex(latex)
        st.caption(text)
    st.subheader("Algorithms")
    for text in (_ALGORITHM_1, _ALGORITHM_2, _ALGORITHM_3):
        with st.container(border=True):
            st.markdown(text)


def _show_equation(equation: Equation) -> None:
    st.latex(rf"{equation.latex} \qquad ({equation.number})")
    st.caption(equation.text)
