"""How a stream chooses its next token."""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from braid.errors import BraidError, SamplingError
from braid.streams.strict import Frozen, FrozenMap, StrictModel, problem

__all__ = ["SamplingSpec"]

_TokenId = Annotated[int, Field(ge=0)]
_Bias = Annotated[float, Field(strict=True)]


class SamplingSpec(StrictModel):
    """Sampling parameters of one stream; the default is greedy.

    Args:
        temperature: 0 is greedy, else logits are divided by it.
        top_k: only the `top_k` likeliest tokens.
        top_p: only the likeliest tokens whose probabilities add up to `top_p`.
        min_p: only tokens at least `min_p` times as likely as the likeliest.
        repetition_penalty: above 1 makes tokens that the stream has said less likely; 1 does nothing.
        logit_bias: added to the logits of these token ids; -100 all but forbids one.
        silence_bias: added to the logit of silence, of models that can be silent: below 0 the stream speaks sooner, and
            an auditor flags what it is less sure of.
        seed: key of the noise; None takes the session's.

    Raises:
        SamplingError: a value lies out of range, or contradicts another.
        UnknownKeyError: there is no such parameter.
    """

    refusal: ClassVar[type[BraidError]] = SamplingError

    temperature: float = Field(default=0.0, ge=0, strict=True)
    top_k: int | None = Field(default=None, ge=1, strict=True)
    top_p: float | None = Field(default=None, gt=0, le=1, strict=True)
    min_p: float | None = Field(default=None, ge=0, lt=1, strict=True)
    repetition_penalty: float = Field(default=1.0, gt=0, strict=True)
    logit_bias: Frozen[_TokenId, _Bias] = FrozenMap()
    silence_bias: float = Field(default=0.0, strict=True, allow_inf_nan=False)
    seed: int | None = Field(default=None, ge=0, lt=2**63, strict=True)

    def of_model(self, silence_token_id: int | None) -> Self:
        """The same, with the bias of silence spelled as that of a token.

        Args:
            silence_token_id: The model's; None where it cannot be silent.

        Raises:
            SamplingError: It cannot, and there is a bias.

        >>> SamplingSpec(silence_bias=-0.5).of_model(1).logit_bias
        {1: -0.5}
        """
        if not self.silence_bias:
            return self
        if silence_token_id is None:
            raise SamplingError(
                "this model cannot be silent, so that silence_bias does nothing; leave it out, or use a model that was "
                "trained with silence"
            )
        bias = self.logit_bias.get(silence_token_id, 0.0) + self.silence_bias
        biases = FrozenMap({**self.logit_bias, silence_token_id: bias})
        return self.model_copy(update={"logit_bias": biases, "silence_bias": 0.0})

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature == 0

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        if self.is_greedy:
            # No filter removes the likeliest token: with greedy choice they would be dropped in silence.
            filters = {"top_k": self.top_k, "top_p": self.top_p, "min_p": self.min_p}
            idle = [name for name, value in filters.items() if value not in (None, 0.0, 1.0)]
            if idle:
                what = f"{idle[0]} does nothing while temperature is 0 (greedy)"
                raise problem(f"{what}: set temperature above 0, or leave {idle[0]} out")
        return self
