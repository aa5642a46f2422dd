"""User B tries to get at what is user A's, by every way there is. Each attack fails; where a defence can be taken away,
a test does that and sees the attack succeed."""
