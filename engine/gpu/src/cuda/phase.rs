//! The phases of an iteration.

/// The parts of an iteration, each of one lane, in the order in which they could run one after another. With several
/// ranks, look-ups need the route, so it is built before the iteration; one GPU builds it within.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    BottomForward,
    LookUp,
    Attend,
    Interact,
    TopForward,
    Head,
    TopBackward,
    TopWeights,
    InteractBackward,
    AttendBackward,
    InteractWeights,
    Reduce,
    BottomBackward,
    BottomWeights,
    TopBiases,
    OtherBiases,
    AllReduceTop,
    AllReduceInteraction,
    AllReduceBottom,
    Verdict,
    Route,
    UpdateTables,
    UpdateDense,
}

impl Phase {
    pub(crate) const ALL: [Self; 23] = [
        Self::BottomForward,
        Self::LookUp,
        Self::Attend,
        Self::Interact,
        Self::TopForward,
        Self::Head,
        Self::TopBackward,
        Self::TopWeights,
        Self::InteractBackward,
        Self::AttendBackward,
        Self::InteractWeights,
        Self::Reduce,
        Self::BottomBackward,
        Self::BottomWeights,
        Self::TopBiases,
        Self::OtherBiases,
        Self::AllReduceTop,
        Self::AllReduceInteraction,
        Self::AllReduceBottom,
        Self::Verdict,
        Self::Route,
        Self::UpdateTables,
        Self::UpdateDense,
    ];

    /// Whether the phase consists only of layers, so that no other rank takes part in it.
    pub(super) fn is_local(self) -> bool {
        let of_ranks = matches!(self, Self::LookUp | Self::Reduce | Self::Route | Self::UpdateTables);
        let sums = matches!(self, Self::AllReduceTop | Self::AllReduceInteraction | Self::AllReduceBottom);
        !of_ranks && !sums && !matches!(self, Self::Verdict | Self::UpdateDense)
    }

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::BottomForward => "bottom MLP",
            Self::LookUp => "look-ups",
            Self::Attend => "attention",
            Self::Interact => "interaction",
            Self::TopForward => "top MLP",
            Self::Head => "heads and loss",
            Self::TopBackward => "top MLP backward",
            Self::TopWeights => "top MLP weight gradients",
            Self::InteractBackward => "interaction backward",
            Self::AttendBackward => "attention backward",
            Self::InteractWeights => "interaction weight gradients",
            Self::Reduce => "row gradients to owners",
            Self::BottomBackward => "bottom MLP backward",
            Self::BottomWeights => "bottom MLP weight gradients",
            Self::TopBiases => "top MLP bias gradients",
            Self::OtherBiases => "other bias gradients",
            Self::AllReduceTop => "all-reduce, top MLP",
            Self::AllReduceInteraction => "all-reduce, interaction",
            Self::AllReduceBottom => "all-reduce, bottom MLP",
            Self::Verdict => "verdict",
            Self::Route => "route",
            Self::UpdateTables => "update of tables",
            Self::UpdateDense => "update of dense parameters",
        }
    }
}
