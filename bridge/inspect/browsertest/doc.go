// Package browsertest tests the pages of package inspect in a real browser: with and without JavaScript, with the
// keyboard alone, on a narrow screen and in dark mode. It is a module of its own, because of the driver of the browser.
//
// It needs chromium-headless-shell, a package of Debian. If SCREENSHOTS is set to a directory, the tests write
// screenshots for the documentation there.
package browsertest
