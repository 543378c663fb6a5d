# frozen_string_literal: true

# Prints what is held, and which shards of the store do not answer: to a list, and to a watch.
require_relative "../ruby/locksidecar"

sidecar = Locksidecar::Client.new
begin
  sidecar.list { |lock| puts lock["resource"] }
rescue Locksidecar::ListIncomplete => e
  puts ["lacks", *e.missing].join(" ")
end
sidecar.watch do |change|
  puts [change["kind"], *change["missingShards"]].join(" ")
  break
end
