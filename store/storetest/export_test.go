package storetest

// Rules returns the names of all rules.
func Rules() []string {
	names := []string{compactedCase}
	for _, c := range cases() {
		names = append(names, c.name)
	}
	return names
}
