// Package supervise runs a program that must not outlive its permission to run.
//
// Two processes see to it. The front is the one that was started: a shell's job, or a
// service's main process. It has the signals and the terminal, and starts the supervisor.
// The supervisor has the permission, and is the parent of the program ([Process]) and of
// everything that the program leaves behind, so that it can end all of it. Each of the two
// ends the program when the other cannot any more: when it was killed, or was
// stopped until the permission was over.
//
// [Supervisor] is the supervisor as the front sees it, [Front] the front as the supervisor does.
package supervise
