package operationexecutor

// The defaults, for tests.
const (
	DefaultGrace                = defaultGrace
	DefaultTimeout              = defaultTimeout
	DefaultWaitForAttachTimeout = defaultWaitForAttachTimeout
)
