// Package supervise runs a program that must not outlive its permission to run.
//
// Two processes do that. The front is the process that the user started: a shell's job, or a
// service's main process. It has the signals and the terminal, and starts the supervisor.
// The supervisor has the permission. It is the parent of the program ([Process]) and of
// everything that the program leaves behind, so it can end all of these. Each of the two
// ends the program when the other one cannot: because the other was killed, or was
// stopped until the permission was over.
//
// [Supervisor] is how the front sees the supervisor. [Front] is how the supervisor sees the front.
package supervise
