package hidden

const Hidden = 1
