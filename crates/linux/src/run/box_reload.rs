//! Reloads the configuration of a box.

use std::time::Duration;

use braid_proxy::BoxCore;
use braid_proxy::app::Ctx;
use braid_proxy::config::{BoxConfig, Changes};
use braid_proxy::control::{Answer, STOPPING};

use super::gateway_box::{BoxHost, SilenceDetector, warn_of_plaintext};
use super::places::Places;
use super::process::raise_descriptor_limit;
use super::reload;
use super::uplinks::in_use;
use crate::driver::Context;
use crate::net::{Result, SystemError};

/// Grace period in which a removed link keeps its path and routes, so that the FINs of its subflows are sent and
/// acknowledged over the link. The value is a guess: longer than several round trips.
const LINK_REMOVAL_GRACE: Duration = Duration::from_secs(3);

impl BoxHost<'_> {
    /// Applies each configuration that the reloader's thread has read meanwhile, and answers the client that asked for
    /// the reload.
    pub(super) fn apply_reloads(&mut self, context: &mut Context<'_, BoxCore>) {
        while let Some(reloader) = &self.reload
            && let Some((read, client)) = reloader.next()
        {
            let before = reloader.config.clone();
            let outcome = read
                .map_err(|error| reload::refuse(&error))
                .and_then(|new| self.apply(context, &before, new));
            reload::report(outcome, client);
        }
    }

    /// Applies `new`, the current content of the file, in place of `before`, and returns what it changes.
    fn apply(
        &mut self,
        context: &mut Context<'_, BoxCore>,
        before: &BoxConfig,
        new: BoxConfig,
    ) -> std::result::Result<Changes, Answer> {
        if context.core.is_stopping() {
            // While it stops, the core gives this answer to every change. Unlike `Answer::Error`, it is not logged as
            // an error.
            return Err(Answer::Wrong(STOPPING.to_owned()));
        }
        let mut config = before.clone();
        let changes = config.reload(new);
        let changed = self.change_to(context, before, &config);
        changed.map_err(|error| Answer::Error(error.to_string()))?;
        if let Some(reloader) = &mut self.reload {
            reloader.config = config;
        }
        // `change_to` has refreshed the faults, but those of the local network depend on the configuration in use,
        // which was still the earlier one.
        self.update_machine_faults(context.core);
        Ok(changes)
    }

    /// Changes the box from `before` to `config`. Steps that may fail come first, and are undone if one of them fails.
    fn change_to(
        &mut self,
        context: &mut Context<'_, BoxCore>,
        before: &BoxConfig,
        config: &BoxConfig,
    ) -> Result<()> {
        let mut places = self.network.places.clone();
        let leave_at = context.now + LINK_REMOVAL_GRACE;
        let Some(added) = places.change(&config.links, leave_at) else {
            let action = "add the new links while links that were removed a moment ago still close";
            return Err(SystemError::other(action, "reload again in a few seconds"));
        };
        // The listeners come before the rules: they are the most likely to fail (an address may be in use), and the
        // easiest to undo. Until its rule exists, a new listener can be reached over the links, and the kernel may
        // complete handshakes. They stay in the backlog: nothing is accepted before this function returns, and by then
        // the rule drops their packets.
        context.sockets.listen_only(&config.socks)?;
        let places_before = std::mem::replace(&mut self.network.places, places);
        if let Err(error) = self.change_network(config) {
            self.network.places = places_before;
            let undone = [
                self.change_network(before),
                context.sockets.listen_only(&before.socks),
            ];
            for error in undone.into_iter().filter_map(Result::err) {
                tracing::error!(%error, "cannot undo a failed reload: parts of the new configuration are in \
                                         force; restart the box");
            }
            return Err(error);
        }
        self.change_core(context, config, &added);
        self.refresh(context);
        // The routes lead to the new gateways from now on.
        for place in self.changed_gateways(before) {
            context
                .stack
                .revalidate_path(context.now, self.paths[place]);
        }
        // `refresh` calls `keep_forwarding` only if the state of a link has changed. But a reload may have removed the
        // link over which the kernel forwards.
        self.keep_forwarding(context.core);
        if before.servers != config.servers {
            warn_of_plaintext(config);
        }
        Ok(())
    }

    /// Changes packet filter rules, sysctls and routing to `config`.
    fn change_network(&mut self, config: &BoxConfig) -> Result<()> {
        self.network.apply_rules(config)?;
        self.network.route(config)
    }

    /// Changes core and engine to `config`. `added` holds, for each new link, its place and its index in `config`.
    fn change_core(
        &mut self,
        context: &mut Context<'_, BoxCore>,
        config: &BoxConfig,
        added: &[(usize, usize)],
    ) {
        let streams = raise_descriptor_limit(config.limits.connections());
        context.sockets.set_max_streams(streams);
        let (now, core) = (context.now, &mut *context.core);
        let mut ctx = Ctx {
            now,
            stack: context.stack,
            downstream: context.sockets,
        };
        // The paths of removed links, which this returns, stay for their grace period: `clear_places` removes them.
        core.reload(&mut ctx, config);
        let network = &mut self.network;
        let v6 = network.guard.device().has_v6();
        for (place, config_index) in added {
            let uplinks = network.places.uplinks(config);
            let state = network.state_when_routed(*place);
            let number = Places::path(*place).0;
            let link = &config.links[*config_index];
            let addresses = uplinks.addresses_of(number, link, &state, v6);
            // A list by place grows by one entry at most: the new place is the lowest free one, or the next.
            network
                .addresses
                .resize(network.addresses.len().max(*place + 1), addresses);
            network.addresses[*place] = addresses;
            let addresses = in_use(addresses, &network.links, *place);
            // The stack keeps the number of a path even after `remove_path`, so a reused place reuses its path.
            let path = match self.paths.get(*place) {
                Some(path) => {
                    core.replace_link(now, *path, (*config_index, addresses), context.stack)
                }
                None => core.add_link(now, *config_index, addresses, context.stack),
            };
            let path = match path {
                Ok(path) => path,
                // The stack has room for 256 paths, and there are fewer places. If it refused one nevertheless, the
                // paths of further links would not be those of their places.
                Err(error) => {
                    tracing::error!(
                        link = link.name,
                        %error,
                        "cannot add this link and those after it: they carry no traffic until the box is restarted"
                    );
                    return;
                }
            };
            debug_assert_eq!(path, Places::path(*place));
            context.tunnel.add_link(path, network.socket_mark(path));
            self.paths.resize(self.paths.len().max(*place + 1), path);
            self.silence_detectors
                .resize(self.paths.len(), SilenceDetector::default());
            self.silence_detectors[*place] = SilenceDetector::default();
        }
    }

    /// Returns the places of links that kept their place and got another gateway. Packets of such a link take another
    /// route although nothing about the interface changed. So the engine has to validate the paths of these links.
    fn changed_gateways(&self, before: &BoxConfig) -> Vec<usize> {
        let has_changed = |place: &usize| {
            self.network.places.link(*place).is_some_and(|link| {
                let mut links = before.links.iter();
                links.any(|old| old.goes_on_as(link) && old.gateway != link.gateway)
            })
        };
        (0..self.paths.len()).filter(has_changed).collect()
    }

    /// Removes the paths and routes of links whose grace period is over.
    pub(super) fn clear_places(&mut self, context: &mut Context<'_, BoxCore>) {
        let cleared = self.network.places.clear(context.now);
        if cleared.is_empty() {
            return;
        }
        for place in &cleared {
            let Some(path) = self.paths.get(*place).copied() else {
                continue;
            };
            context.core.remove_path(context.now, path, context.stack);
            context.tunnel.remove(path);
            if let Some(mtu) = self.network.mtus.get_mut(*place) {
                // 0 marks a place without a link: `Network::route` sets the MTU when a link takes the place.
                *mtu = 0;
            }
        }
        let Some(config) = self.reload.as_ref().map(|reloader| reloader.config.clone()) else {
            return;
        };
        if let Err(error) = self.change_network(&config) {
            tracing::warn!(%error, "cannot remove all rules and routes of a link that was removed; they stay until the \
                                    next reload or the end of the box");
        }
        self.refresh(context);
    }
}
